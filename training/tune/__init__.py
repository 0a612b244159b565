"""Hyperparameter search on item-disjoint folds of the training items (`retrieval tune`), on Optuna.

study        plan, objective and outcome of a study
space        names that can be searched, and their values; space.toml is the default
"""
