"""The laboratory: trainings on a virtual clock, with real gradients."""
