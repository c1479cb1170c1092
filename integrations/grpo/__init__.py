"""Group relative policy optimization: rollouts in sandboxes, training with FSDP2."""
