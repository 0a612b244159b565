"""`retrieval tune`: settings searched on class-disjoint folds of the training items.

search_space search_targets   what to vary, read and checked
plan study claims             what a study is, its directory, who works on which trial
trial features                one trial, and the features that trials share
tune results report cli       the workers, what they found, its page, the command
"""
