"""The web app: run a model or expression, and see its autograd graph, gradients and copies.

Start it with `graphviz-torch app` or `streamlit run app/main.py`.
"""
