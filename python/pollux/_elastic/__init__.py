"""What trainings of any framework have in common: samples that are dealt out, an agent, a group, checkpoints.

    framework's gradients ──> Session: sum over the group, norms to the agent ──> batch and learning rate of a step
                                  │ between steps: check-in
                                  v
           scheduler's word (Membership) ──> the same group, batch and end for everybody (Group)

A framework gives arrays of numbers and takes some back. Nothing here imports one.
"""
