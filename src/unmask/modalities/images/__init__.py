"""Images: pictures in, patches hidden and predicted back; masked autoencoders and what is made of them."""
