# https://github.com/facebookresearch/dino/blob/7c446df5b9f45747937fb0d72314eb9f7b66930a/main_dino.py
# The crops stay DINO's own, drawn for each image from its seed. Without a recipe images are kept whole.
/^from torchvision import models/a\
from superdl import SuperDataset, SuperSampler
s/datasets.ImageFolder(args.data_path, transform=transform)/SuperDataset(args.data_path, transform=transform)/
s/torch.utils.data.DistributedSampler(dataset, shuffle=True)/SuperSampler(dataset, batch_size=args.batch_size_per_gpu, shuffle=True, drop_last=True)/
/^    data_loader = torch/,/^    )/{
s/batch_size=args.batch_size_per_gpu/batch_size=None/
/drop_last=True,/d
}
