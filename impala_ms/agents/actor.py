"""The actor: it plays T steps in E environments with the newest weights and records an unroll.

Input: observations of the environments, weights from the learner. Output: unrolls in the layout
of ``trajectory``, which ``cluster/spoke`` sends.
"""

import time

import mindspore as ms
import numpy as np

from impala_ms import compat
from impala_ms.agents.checks import check_mask, check_outputs
from impala_ms.frames import push_frame
from impala_ms.nets.weights import FlatWeights


class Stream:
    """The inputs of a policy in E environments, from one step to the next.

    Args:
        environment: ``VectorEnvironment`` of E environments; it is reset here.
        policy: A network that ``check_policy`` has accepted.
    """

    def __init__(self, environment, policy):
        """Begin an episode in every environment."""
        self.environment, self.policy = environment, policy
        self.names = policy.inputs
        envs, distribution = environment.num_envs, policy.distribution
        observation = environment.reset()
        self.first = np.ones(envs, np.bool_)
        shape = envs, *distribution.action_shape
        self.last_action = np.zeros(shape, distribution.action_dtype)
        self.last_reward = np.zeros(envs, np.float32)
        self.core_state = np.zeros((envs, policy.state_size), np.float32)
        self.frames = self._stack = None  # stacks of raw frames, stacks of prepared frames
        self._take(observation)

    def _take(self, observation):
        self.frame = observation
        parts = observation.values() if isinstance(observation, dict) else [observation]
        self.observation = self.policy.prepare(list(parts))
        frames = self.environment.frame_stack
        if frames == 1:
            return
        (prepared,) = self.observation
        if self.frames is None:
            self.frames, self._stack = (
                np.zeros((len(x), frames, *x.shape[1:]), x.dtype) for x in (observation, prepared)
            )
        push_frame(self.frames, observation, self.first, self.frames)
        push_frame(self._stack, prepared, self.first, self._stack)
        self.observation = [self._stack]

    def inputs(self):
        """The policy's inputs beside the observation, in its own order, for S = T = 1."""
        arrays = {
            "last_action": self.last_action,
            "last_reward": self.last_reward,
            "first": self.first[None, None],
            "core_state": self.core_state[None],
        }
        return tuple(arrays[name] for name in self.names)

    def step(self, action, core_state):
        """Take one step in every environment.

        Args:
            action: ``[E, ...]``, as sampled.
            core_state: ``[E, state_size]`` that the policy has returned, or None.

        Returns:
            ``(reward, terminated)``, ``[E]`` each. Afterwards ``frame``, ``first`` and the other
            attributes are those of the next row.
        """
        observation, reward, terminated, _, self.first = self.environment.step(action)
        self._take(observation)
        if self.names:
            keep = ~self.first
            self.last_action = action * keep.reshape(-1, *[1] * (action.ndim - 1))
            self.last_reward = reward * keep
            if core_state is not None:
                self.core_state = core_state * keep[:, None]
        return reward, terminated


class PolicyActor(compat.Actor):
    """An actor that makes one compiled call in each step, for all environments of the rank.

    Args:
        policy: Network of this rank; ``set_weights`` overwrites its weights.
        environment: ``VectorEnvironment`` of E environments, or None (evaluation only).
        unroll_length: T, environment steps.
        rng: ``numpy.random.Generator`` that samples the actions.
    """

    samples = True  # actions by chance, unless they are to be greedy

    def __init__(self, policy, environment, unroll_length, rng):
        """Start without weights (version -1); the environment is reset later."""
        super().__init__()
        self.policy = policy
        self.distribution = policy.distribution
        self.environment = environment
        self.unroll_length = unroll_length
        self.rng = rng
        self.weights = FlatWeights(policy.get_parameters())
        self.version = -1
        self.env_steps = self.steps_of_all = 0
        self.wait_s = 0.0
        self._last_unroll_s = time.perf_counter()
        self._stream = None
        self.parts = policy.parts  # number of parts of a structured observation, or 0
        self.inputs = len(policy.inputs)
        self.state_size = int(policy.state_size)

    def construct(self, noise, *tensors):
        """Sample actions in E environments.

        Args:
            noise: ``[E, ...]`` of ``distribution.noise``.
            *tensors: Observation ``[E, ...]`` (its parts if it is structured), the policy's other
                inputs, and a mask ``[E, M]`` of the allowed actions if there is one. They are not
                tuples: MindSpore takes a tuple of tensors for a constant and would compile again
                for each call.

        Returns:
            ``(action [E, ...], logits [E, A])``; with a core also its state.
        """
        begin = self.parts or 1
        observation = tensors[:begin] if self.parts else tensors[0]
        inputs = tensors[begin : begin + self.inputs]
        mask = tensors[-1] if len(tensors) > begin + self.inputs else None
        outputs = self.policy(observation, inputs) if inputs else self.policy(observation)
        rows = noise.shape[0]
        state_shape = (1, rows, self.state_size)
        check_outputs(outputs, rows, self.distribution.num_parameters, state_shape)
        logits = outputs[0] if mask is None else self.distribution.mask(outputs[0], mask)
        action = self.distribution.sample(logits, noise)
        return (action, logits, outputs[2]) if len(outputs) == 3 else (action, logits)

    def decide(self, stream, noise):
        """Sample actions for the present observations.

        Args:
            stream: ``Stream``.
            noise: ``[E, ...]`` of ``distribution.noise``; zeros give the mode.

        Returns:
            ``(action [E, ...], logits [E, A], core state [E, state_size] or None)`` arrays.
        """
        # from_numpy shares memory: the arrays must not change before the outputs are read
        share = ms.Tensor.from_numpy
        mask = stream.environment.action_mask
        arrays = [np.ascontiguousarray(part) for part in stream.observation]
        if stream.names:
            arrays += stream.inputs()
        if mask is not None:
            arrays.append(mask)
        action, logits, *state = self(share(noise), *map(share, arrays))
        return action.asnumpy(), logits.asnumpy(), state[0].asnumpy()[0] if state else None

    def choose(self, stream, greedy):
        """Do as ``decide``, with noise that is drawn here, or with the mode if ``greedy``."""
        noise = self.distribution.noise(self.rng, (stream.environment.num_envs,))
        return self.decide(stream, np.zeros_like(noise) if greedy else noise)

    def set_weights(self, version, flat, env_steps=0):
        """Use new weights from the next unroll on.

        Args:
            version: Number of updates.
            flat: ``[size]`` float32, which is copied.
            env_steps: Steps of all actors so far.
        """
        self.weights.write(flat)
        self.version, self.steps_of_all = version, env_steps

    def noise(self, rows):
        """Random numbers for so many steps in all environments; see ``distribution.noise``."""
        return self.distribution.noise(self.rng, (rows, self.environment.num_envs))

    def begin_record(self, unroll):
        """Prepare for the rows of an unroll; for actors of another kind."""

    def record(self, unroll, t, logits):
        """Keep the policy's parameters ``[E, A]`` of row t."""
        unroll["behaviour_logits"][t] = logits

    def end_record(self, unroll):
        """Complete an unroll; for actors of another kind."""

    def begin(self):
        """Begin the first episodes and compile; weights are not needed for that."""
        self._stream = Stream(self.environment, self.policy)
        noise = self.distribution.noise(np.random.default_rng(), (self.environment.num_envs,))
        self.decide(self._stream, noise)

    def play(self, unroll):
        """Play one unroll of T steps.

        Args:
            unroll: Views of an unroll (``TrajectorySpec.views``); they are overwritten.
        """
        if self._stream is None:
            self.begin()
        stream, environment = self._stream, self.environment
        names = [name for name in unroll if name.startswith("observation")]
        older = environment.frame_stack - 1

        def put_row(t):
            parts = stream.frame.values() if isinstance(stream.frame, dict) else (stream.frame,)
            for name, part in zip(names, parts, strict=True):
                unroll[name][older + t] = part
            unroll["first"][t] = stream.first

        put_row(0)
        for row in range(older):
            unroll["observation"][row] = stream.frames[:, row]
        for name in stream.names:
            if name in unroll and name != "first":
                unroll[name][...] = getattr(stream, name)
        unroll["episode_length"][...] = 0
        unroll["behaviour_version"][...] = self.version
        self.begin_record(unroll)
        noise = self.noise(self.unroll_length)

        for t in range(self.unroll_length):
            mask = environment.action_mask
            if mask is not None:
                unroll["action_mask"][t] = mask
            action, logits, state = self.decide(stream, noise[t])
            unroll["action"][t] = action
            self.record(unroll, t, logits)
            unroll["reward"][t], unroll["terminated"][t] = stream.step(action, state)
            put_row(t + 1)
            if mask is not None:
                check_mask(unroll["action_mask"][t], stream.first)
            ended, returns, lengths = environment.finished
            if len(ended):
                unroll["episode_return"][t, ended] = returns
                unroll["episode_length"][t, ended] = lengths

        self.end_record(unroll)
        self.env_steps += int((~unroll["first"][1:]).sum())
        unroll["env_steps"][...] = self.env_steps
        now = time.perf_counter()
        unroll["wait_fraction"][...] = self.wait_s / max(now - self._last_unroll_s, 1e-9)
        self.wait_s, self._last_unroll_s = 0.0, now
