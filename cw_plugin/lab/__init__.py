"""What reproduces and judges the paper: data, rewards, evaluation, reports and the doctor. No host needs it."""
