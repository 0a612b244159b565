"""The training loop: trainer, optimizers, processes and the run directory."""
