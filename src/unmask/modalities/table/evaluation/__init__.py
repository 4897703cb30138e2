"""How synthetic rows compare with real ones, and what they give away of them."""
