"""The commands of `lab`, and the code that several commands share."""
