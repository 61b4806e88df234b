# https://github.com/Lightning-AI/pytorch-lightning/blob/7f0c3436cd3f6ad3753125672024fc415cbcb414/examples/pytorch/domain_templates/imagenet.py
/^import torchvision.datasets/c\
from superdl import Recipe, SuperDataset, SuperSampler
s/self.train_dataset = datasets.ImageFolder($/self.train_dataset = SuperDataset(/
s/^                train_dir,$/                train_dir, transform=/
s/self.eval_dataset = datasets.ImageFolder($/self.eval_dataset = SuperDataset(/
s/^            val_dir,$/            val_dir, Recipe.image(resize=256, crop=224), padding="skip", transform=/
s/transforms.Resize(256), transforms.CenterCrop(224), //
/def train_dataloader/a\
        sampler = SuperSampler(self.train_dataset, batch_size=self.batch_size, shuffle=True)\
        sampler.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
/^            batch_size=self.batch_size,$/d
s/^            shuffle=True,$/            sampler=sampler, batch_size=None,/
s/^\( *\)self.eval_dataset, batch_size=self.batch_size,/\1self.eval_dataset, batch_size=None, sampler=SuperSampler(self.eval_dataset, batch_size=self.batch_size, shuffle=False),/
