"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2.

In the order to read:

    program, config               the command, and every setting
    trainer, loop                 a run is opened; its steps
    data, rollout, clock          a prompt becomes a group of graded completions; their times
    turns, workplace              tool calls in what a model wrote, and where they are made
    buffer, sampling              groups become batches, ahead of training or in step with it
    advantages, objective         rewards and log-probabilities become a loss: pure functions
    packing, model, training      a batch becomes an optimizer step
    ranks, parent, sharding       the processes that train together, and a model in parts
    lora, checkpoint, gguf        adapters, what is kept, and models kept otherwise
    engines/                      what samples, and how new weights get there
    metrics, record, records      what is kept of a step and of each rollout
    console, plot, show           what a person sees of it
"""
