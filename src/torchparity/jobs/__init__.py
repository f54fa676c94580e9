"""The jobs people come for, each as one function; `pipeline` joins them."""
