"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2.

In the order to read:

    program, config               the command, and every setting
    trainer, loop                 a run is opened; its steps
    data, rollout, turns          a prompt becomes a group of graded completions
    buffer, sampling              groups become batches, ahead of training or in step with it
    advantages, objective         rewards and log-probabilities become a loss: pure functions
    packing, model, training      a batch becomes an optimizer step
    lora, checkpoint, ranks       adapters, what is kept, and the processes that train together
    engines/                      what samples, and how new weights get there
    console, plot                 what a person sees of it
    toys/                         tasks for models made on the spot
"""
