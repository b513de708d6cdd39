"""The part of a dry run that is in the training process: it watches reads of the device, and ends the training after some steps."""
