"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2.

The modules, in reading order:

    program, config               the command line, and every setting
    trainer, loop                 set up a run; run its steps
    data, rollout                 turn a prompt into a group of graded completions, with timing
    turns, workplace              parse the model's tool calls; run them in a sandbox
    buffer, sampling              collect groups into batches, synchronously or ahead of training
    advantages, objective         rewards and log-probabilities to a loss, as pure functions
    packing, model, training      a batch to an optimizer step
    ranks, parent, sharding       the training processes, and the sharded model
    lora, checkpoint              adapters, and checkpoints
    engines/                      inference engines, and the transfer of new weights to them
    metrics, record               metrics of a step, and records of each rollout
    console, output               output for people

Its neighbour `_training` has what all trainers share: timing, records of rollouts, and views of a run.
"""
