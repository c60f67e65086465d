"""The bundled models of Draftwise, one a folder. No code: `draftwise.models.zoo` finds the folders."""
