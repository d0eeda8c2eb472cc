"""What posterior draws say: states, innovations, predictions, log-likelihoods, criteria."""
