"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2.

The modules, in reading order:

    program, config               the command line, and every setting
    trainer, loop                 set up a run; run its steps
    data, rollout                 turn a prompt into a group of graded completions, with timing and records
    turns, workplace              parse the model's tool calls; run them in a sandbox
    buffer, sampling              collect groups into batches, synchronously or ahead of training
    advantages, objective         rewards and log-probabilities to a loss, as pure functions
    packing, model, training      a batch to an optimizer step
    ranks, parent                 the training processes
    lora, checkpoint              adapters, and checkpoints
    engines/                      inference engines, and the transfer of new weights to them
    metrics                       metrics of a step
    console, output               output for people

Its neighbour `_training` has what all trainers share: timing, records of rollouts, and views of a run.
"""
