"""A3C: workers that play and compute gradients, a server that applies each as it comes."""
