"""Hyperparameter search on class-disjoint folds of the training items (`retrieval tune`).

search_space search_targets   axes of the search, parsed and checked
plan study trial_queue        definition of a study, its directory, assignment of trials to workers
trial features                one trial, and features shared by trials
tune results report cli       workers, results, HTML report, command
"""
