"""How the bundled model tiny-screen is made: screens, questions, tokenizer, model, training, export, evaluation."""
