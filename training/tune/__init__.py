"""Hyperparameter search on class-disjoint folds of the training items (`retrieval tune`), on Optuna.

search_space   names that can be searched, and their values
study          the study: plan, Optuna's storage, processes, outcome
trial          one trial: training on each fold
"""
