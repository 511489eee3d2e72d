"""Ape-X DQN: many actors explore differently, one learner draws by priority."""
