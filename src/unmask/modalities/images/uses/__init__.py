"""What a pretrained encoder of images is used for: pretrain, reconstruct, embed, evaluate, finetune."""
