"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2.

In the order to read:

    program, config               the command, and every setting
    trainer, loop                 a run is opened; its steps
    data, rollout                 a prompt becomes a group of graded completions
    turns, workplace              tool calls in what a model wrote, and where they are made
    buffer, sampling              groups become batches, ahead of training or in step with it
    advantages, objective         rewards and log-probabilities become a loss: pure functions
    packing, model, training      a batch becomes an optimizer step
    ranks, sharding               the processes that train together, and a model in parts
    lora, checkpoint              adapters, and what is kept
    engines/                      what samples, and how new weights get there
    console, plot                 what a person sees of it
    toys/                         tasks for models made on the spot
"""
