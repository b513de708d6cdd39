"""Changes of a training that a dry run switches on from outside, without a change of its code: one module for each."""
