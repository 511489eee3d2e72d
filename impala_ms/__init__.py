"""IMPALA and, later, the other systems of its line, for MindSpore.

Importing the package costs nothing: it only sets the environment variables that MindSpore and
its libraries read while they are imported. A variable that the user has set stays as it is.
"""

import os

__version__ = "0.1.0"

ENVIRONMENT_DEFAULTS = {
    # oneDNN 3.10 (MindSpore 2.9, 2.10) runs convolutions on its reference kernel on AVX-512
    # processors, about 25 times slower than its AVX2 kernels.
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "GLOG_v": "3",  # MindSpore's C++ log: errors only; its warnings would drown worker_<rank>.txt
}
for _name, _value in ENVIRONMENT_DEFAULTS.items():
    os.environ.setdefault(_name, _value)
del _name, _value
