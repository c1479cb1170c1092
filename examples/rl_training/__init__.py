"""Programs around a training loop; each runs on its own."""
