"""What every report needs: the machine it was made on, numbers as people read them, charts."""
