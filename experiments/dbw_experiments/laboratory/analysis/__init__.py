"""What results say, in numbers; nothing is drawn here."""
