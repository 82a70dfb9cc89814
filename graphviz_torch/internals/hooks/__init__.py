"""Where PyTorch lets itself be watched: modules, operators, nodes, backward, optimizers."""
