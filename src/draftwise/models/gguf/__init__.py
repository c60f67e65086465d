"""GGUF files, run by llama.cpp through llama-cpp-python."""
