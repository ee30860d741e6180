"""`kvlab doctor --gaudi`: run the backend on a real Gaudi and write down what happened, to be pasted in an issue."""
