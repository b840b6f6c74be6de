"""Programs with one planted fault each, clean ones, and what PASTA must say of them first."""
