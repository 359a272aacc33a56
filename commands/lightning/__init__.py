"""LightningCLI for Doppel: training and sampling commands, their errors, the hardware."""
