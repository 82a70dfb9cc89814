"""Why a call or a backward raised."""
