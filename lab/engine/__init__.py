"""How notebooks run: parameters, the runner, kernels, where results stand."""
