# https://github.com/huggingface/transformers/blob/ae05b2ae619aa28fdfdcb8244009d585b7e1fed7/examples/pytorch/image-classification/run_image_classification.py
# Give --train_dir, --validation_dir and --dataloader_num_workers, since the script's crops and flips draw.
# --max_train_samples and --max_eval_samples have no effect.
/^import transformers$/i\
from superdl import SuperDataset, SuperTrainerMixin, split_transform
/^def main():/i\
class Trainer(SuperTrainerMixin, Trainer): pass
/^    # Initialize our trainer/i\
    parts = split_transform(_val_transforms)\
    training = SuperDataset(data_args.train_dir, transform=_train_transforms)\
    validation = SuperDataset(data_args.validation_dir, parts.recipe, transform=parts.rest, return_info=True)
s/train_dataset=dataset\["train"\] if/train_dataset=training if/
s/eval_dataset=dataset\["validation"\] if/eval_dataset=validation if/
