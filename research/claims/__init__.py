"""Sets with many classes, short trainings, and verdicts on the papers' claims: for `benchmarks.many_classes`."""
