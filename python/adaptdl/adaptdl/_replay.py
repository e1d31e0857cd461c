"""Whether this process repeats what the training has done already.

A restarted process, and one that joins a training, run the script from the top. Loops that are over give nothing, and
what follows them is not to be done twice.
"""

is_replaying = False
"""Until the loop begins that the training is at."""
catches_up = False
"""Whether the others are there already, and wait."""
