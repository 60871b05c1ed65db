"""The backend tests of the installed onnx, run by gossamer and by ONNX Runtime."""
