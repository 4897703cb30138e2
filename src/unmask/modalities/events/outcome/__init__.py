"""What is predicted of a patient: features, candidates, probabilities, figures."""
