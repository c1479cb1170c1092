"""Who may start: caps, the warm pool, and the places that processes of this machine share."""
