"""What a pass costs on models of real sizes, what it could cost, and what policies make of such prices."""
