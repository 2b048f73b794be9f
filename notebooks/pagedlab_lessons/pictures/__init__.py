"""The pictures that open the notebooks: nNN.py has that of notebook NN."""
