"""One model, one run -> outcome: the subject, its state, the reference, the noise and the training step."""
