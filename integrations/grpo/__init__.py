"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2.

The modules, in reading order:

    program, launch, config       the command line, torchrun's, and every setting
    trainer, loop                 set up a run; run its steps
    data, rollout                 turn a prompt into a group of graded completions, with timing and records
    turns, workplace              parse the model's tool calls; run them in a sandbox
    buffer, sampling              collect groups into batches, synchronously or ahead of training
    advantages, objective         rewards and log-probabilities to a loss, as pure functions
    packing, attention, model, training   a batch to an optimizer step
    ranks, parent                 the training processes
    lora, checkpoint              adapters, and checkpoints
    engines/, hand_over           inference engines; the transfer of new weights to them, and its check
    metrics                       metrics of a step
    console, output               output for people
    outage, errors                the backend is away, or the run has to end

Its neighbour `_training` has what all trainers share: timing, records of rollouts, and views of a run.
"""
