"""DQN: a replay of transitions, action values, a target network."""
