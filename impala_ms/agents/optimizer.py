"""The optimiser that the configuration names.

Input: parameters and settings. Output: an optimiser for ``agents/learner``.
"""

from mindspore import nn

from impala_ms.nets.rmsprop import RMSProp


def make_optimizer(parameters, params):
    """The optimiser that the configuration names.

    Args:
        parameters: Trainable parameters.
        params: ``learner_params``.

    Returns:
        ``nn.Optimizer`` whose ``learning_rate`` is a parameter, set before each update.
    """
    if params["optimizer"] == "rmsprop":
        return RMSProp(
            parameters,
            params["lr"],
            decay=params["rmsprop_decay"],
            momentum=params["rmsprop_momentum"],
            epsilon=params["optimizer_epsilon"],
            start=params["rmsprop_start"],
        )
    if params["optimizer"] == "adagrad":
        return nn.Adagrad(parameters, params["adagrad_start"], params["lr"])
    return nn.Adam(
        parameters,
        params["lr"],
        beta1=params["adam_beta1"],
        beta2=params["adam_beta2"],
        eps=params["optimizer_epsilon"],
    )
